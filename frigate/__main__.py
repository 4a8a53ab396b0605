"""`python -m frigate` is `frigate`; torchrun starts it as `torchrun ... -m frigate train`."""

import os
import sys

from frigate.cli.main import main

if __name__ == "__main__":
    status = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # torch's threads may still run when Python takes itself down, which aborts a process that has finished.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
