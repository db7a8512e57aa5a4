"""Ten thousand small files: made, listed, looked at, read, renamed, removed."""

import os

FILES, FOLDERS = 10_000, 10

for folder in range(FOLDERS):
    os.mkdir(str(folder))
for number in range(FILES):
    with open(f"{number % FOLDERS}/{number}", "w") as file:
        file.write(str(number))

seen = total = 0
for folder in range(FOLDERS):
    for entry in os.scandir(str(folder)):
        assert entry.stat().st_size == len(entry.name)
        with open(entry.path) as file:
            total += int(file.read())
        seen += 1
assert seen == FILES
for number in range(FILES):
    path = f"{number % FOLDERS}/{number}"
    os.rename(path, path + ".old")
    os.unlink(path + ".old")
assert not any(os.listdir(str(folder)) for folder in range(FOLDERS))
print(total)
