"""What a user can put right, told from faults of ours; standard library only, anyone may import it."""


class UserError(ValueError):
    """One line that names field, value, rule and remedy. Entries print it and exit with 2; any other error keeps its
    traceback.
    """
