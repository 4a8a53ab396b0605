"""`python -m frigate` is `frigate`; torchrun starts it as `torchrun ... -m frigate train`."""

import sys

from frigate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
