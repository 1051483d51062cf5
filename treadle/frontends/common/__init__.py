"""What the frontends share: writing graph operators while importing, and bodies of converters."""
