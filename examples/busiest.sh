# Who asked most, and for which kinds of files: a pipeline of the tools in the image.
set -eu
echo "hosts with the most requests:"
cut -d ' ' -f 1 "$1" | sort | uniq -c | sort -k 1,1nr -k 2 | head -n 3
echo "requests by kind:"
sed -E 's/.*"[A-Z]+ ([^ ]+).*/\1/; s/.*\.([a-z]+)$/\1/; s/.*\/$/folder/' "$1" |
  sort | uniq -c | sort -k 1,1nr -k 2
