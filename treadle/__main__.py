"""`python -m treadle`: the command line where no `treadle` is on the PATH."""

import sys

from treadle.tools.treadle_cli import main

if __name__ == "__main__":
    sys.exit(main())
