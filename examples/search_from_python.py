"""A search in one call. Each setting is written as its flag is typed; the result is the ranking, the winner first."""

from tune.settings import Settings
from tune.study import search

if __name__ == "__main__":
    result = search(Settings(budget="2h", families="nanogpt"))
    print(result)  # a pandas DataFrame
    print(result.attrs["study"])  # its folder; search(Settings.of_study(FOLDER, budget="4h")) goes on with it
