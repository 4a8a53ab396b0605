"""`python -m frigate` is `frigate`; torchrun starts it as `torchrun ... -m frigate train`."""

import os
import sys

from frigate.cli.main import main

if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as ended:  # of the parser: --help, or words that it does not know
        status = ended.code if isinstance(ended.code, int) else 0
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # torch's threads may still run when Python takes itself down, which aborts a process that has finished.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
