"""``python -m fspool`` is the command ``fspool`` of this very Python."""

from .cli import main

if __name__ == "__main__":
    main()
