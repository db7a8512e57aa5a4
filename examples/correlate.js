// Which measurements of a flower go together: Pearson's r for each pair of columns of a CSV.
const fs = require("fs");

const [header, ...lines] = fs.readFileSync(process.argv[2], "utf8").trim().split("\n");
const names = header.split(",").slice(0, -1);
const rows = lines.map((line) => line.split(",").slice(0, -1).map(Number));
const column = (index) => rows.map((row) => row[index]);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function correlation(left, right) {
  const [meanLeft, meanRight] = [mean(left), mean(right)];
  let [product, squareLeft, squareRight] = [0, 0, 0];
  left.forEach((value, row) => {
    const [x, y] = [value - meanLeft, right[row] - meanRight];
    product += x * y;
    squareLeft += x * x;
    squareRight += y * y;
  });
  return product / Math.sqrt(squareLeft * squareRight);
}

names.forEach((name, first) => {
  for (let second = first + 1; second < names.length; second++) {
    const r = correlation(column(first), column(second));
    console.log(`${name.padEnd(13)} ${names[second].padEnd(13)} ${r.toFixed(3).padStart(6)}`);
  }
});
