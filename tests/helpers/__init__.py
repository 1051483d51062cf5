"""What several tests share: FileCheck in-process, recorded expectations, environment."""
