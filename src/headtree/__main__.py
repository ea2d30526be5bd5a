"""`python -m headtree` is the `headtree` command."""

from headtree.cli.app import main

if __name__ == "__main__":
    main()
