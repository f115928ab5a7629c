"""What each verb of the command does; cli.py only reads the words."""
