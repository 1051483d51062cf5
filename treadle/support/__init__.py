"""What every layer uses: imports that wait, files, publishing of what is complete, what others add."""
