"""``python -m vkep``: the command line."""

from vkep.cli import main

if __name__ == "__main__":
    main()
