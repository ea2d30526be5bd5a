"""`python -m headtree` is the `headtree` command."""

from headtree.cli import main

if __name__ == "__main__":
    main()
