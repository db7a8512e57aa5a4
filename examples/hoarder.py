"""A program that keeps everything: it reads "all pages" of something that has no last page."""

pages = []
while True:
    pages.append(bytearray(1_000_000))
    if len(pages) % 20 == 0:
        print(f"{len(pages)} pages", flush=True)
