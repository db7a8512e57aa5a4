"""pandas: a CSV read, grouped, joined, resampled, and written."""

import pandas

with open("sales.csv", "w") as file:
    file.write("day,town,amount\n")
    for day in range(1, 29):
        for town in ("Bern", "Graz", "Lyon"):
            file.write(f"2024-02-{day:02d},{town},{day * len(town)}\n")

sales = pandas.read_csv("sales.csv", parse_dates=["day"])
towns = pandas.DataFrame({"town": ["Bern", "Graz", "Lyon"], "country": ["CH", "AT", "FR"]})
by_country = sales.merge(towns, on="town").groupby("country")["amount"].sum()
assert by_country.to_dict() == {"CH": 1624, "AT": 1624, "FR": 1624}

weekly = sales.set_index("day")["amount"].resample("7D").sum()
assert list(weekly) == [336, 924, 1512, 2100]
by_country.to_csv("countries.csv")
assert pandas.read_csv("countries.csv")["amount"].sum() == 4872
print(sales["amount"].sum())
