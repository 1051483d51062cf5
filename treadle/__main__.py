"""`python -m treadle`: the command line where no `treadle` is on the PATH."""

import sys

from treadle.tools.treadle_cli import main

sys.exit(main())
