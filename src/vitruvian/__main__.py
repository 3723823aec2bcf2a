"""`python -m vitruvian`: the command line."""

from vitruvian.cli import main

if __name__ == "__main__":
    main()
