"""`python -m curvi.cli`."""

from curvi.cli import main

if __name__ == "__main__":
    main()
