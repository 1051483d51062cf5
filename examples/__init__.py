"""Programs that use Treadle as a user would."""
