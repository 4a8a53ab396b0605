"""`python -m frigate` is the `frigate` command; for torchrun, `torchrun ... -m frigate train`."""

import os
import sys

from frigate.cli.main import main

if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as ended:  # from the argument parser: --help or invalid arguments
        status = ended.code if isinstance(ended.code, int) else 0
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # torch threads still running at interpreter shutdown can abort a process that has finished.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
