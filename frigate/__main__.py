"""`python -m frigate` is `frigate`: so that torchrun can start it, as `torchrun ... -m frigate train`."""

from frigate.cli.main import main

if __name__ == "__main__":
    main()
