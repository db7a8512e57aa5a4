// `node_client.js WAY URL...`: what Node.js gets of each URL, a line each.
const http = require('node:http');
const https = require('node:https');

const ways = {
  async fetch(url) {
    return (await fetch(url)).text();
  },
  https(url) {
    return new Promise((resolve, reject) => {
      (url.startsWith('https:') ? https : http).get(url, (answer) => {
        let said = '';
        answer.on('data', (piece) => { said += piece; });
        answer.on('end', () => resolve(said));
      }).on('error', reject);
    });
  },
};

function shown(error) {
  return error.cause ? `${error.message}: ${shown(error.cause)}` : error.message;
}

(async () => {
  const [way, ...urls] = process.argv.slice(2);
  for (const url of urls) {
    const said = await ways[way](url).catch(shown);
    console.log(way, said.trim());
  }
  process.exit(0);
})();
