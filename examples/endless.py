"""A program that never comes to its end: the search for an odd perfect number."""

print("looking", flush=True)
number = 1
while sum(divisor for divisor in range(1, number) if number % divisor == 0) != number:
    number += 2
print(number)
