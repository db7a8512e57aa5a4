// Preloaded into Node.js by NODE_OPTIONS where a sandbox has an egress proxy. Since 22.21 and 24 Node.js
// heeds the variables by itself (NODE_USE_ENV_PROXY); in older ones http, https and fetch do not.
'use strict';

const [major, minor] = process.versions.node.split('.').map(Number);
const heeds = major >= 24 || (major === 22 && minor >= 21);
const named = process.env.https_proxy || process.env.HTTPS_PROXY || '';

if (!heeds && named) {
  try {
    install(new URL(named));
  } catch {
    // A program that needs no network is not to fail for it.
  }
}

function install(proxy) {
  const http = require('node:http');
  const https = require('node:https');
  const net = require('node:net');
  const tls = require('node:tls');

  function isDirect(host) {
    const listed = (process.env.no_proxy || process.env.NO_PROXY || '').split(',');
    const bare = host.replace(/^\[|\]$/g, '');
    return listed.map((name) => name.trim()).includes(bare);
  }

  // A tunnel through the proxy, whatever is spoken in it; the proxy looks.
  function tunnel(host, port, done) {
    const bare = host.replace(/^\[|\]$/g, '');
    const target = `${net.isIPv6(bare) ? `[${bare}]` : bare}:${port}`;
    const asked = http.request({
      host: proxy.hostname,
      port: proxy.port,
      method: 'CONNECT',
      path: target,
      headers: { Host: target },
      agent: false,
      createConnection: net.connect,
    });
    asked.once('connect', (answer, socket) => {
      if (answer.statusCode === 200) {
        done(null, socket);
        return;
      }
      socket.destroy();
      done(new Error(`the egress proxy refuses ${target}: ${answer.statusCode} ` +
        `${answer.statusMessage} [${answer.headers['x-stockade-egress'] || ''}]`));
    });
    asked.once('error', (error) => done(error));
    asked.end();
  }

  function secured(socket, options) {
    const name = options.servername || options.hostname || options.host;
    return tls.connect({ ...options, socket, host: name, path: undefined,
      servername: net.isIP(name) ? '' : name });
  }

  class HttpAgent extends http.Agent {
    createConnection(options, done) {
      if (options.socketPath || isDirect(options.host)) return net.connect(options);
      tunnel(options.host, options.port, done);
      return undefined;
    }
  }
  class HttpsAgent extends https.Agent {
    createConnection(options, done) {
      if (options.socketPath || isDirect(options.host)) return tls.connect(options);
      tunnel(options.host, options.port, (error, socket) => {
        if (error) done(error);
        else done(null, secured(socket, options));
      });
      return undefined;
    }
  }
  const kept = { keepAlive: true, scheduling: 'lifo', timeout: 5000 };
  http.globalAgent = new HttpAgent(kept);
  https.globalAgent = new HttpsAgent(kept);

  // fetch has a dispatcher of its own, which is loaded when it is first used.
  const original = globalThis.fetch;
  if (typeof original !== 'function') return;
  const key = Symbol.for('undici.globalDispatcher.1');
  const connect = (options, done) => {
    const port = options.port || (options.protocol === 'https:' ? 443 : 80);
    const go = (error, socket) => {
      if (error) {
        done(error, null);
      } else if (options.protocol === 'https:') {
        const over = secured(socket, { servername: options.servername,
          hostname: options.hostname, ALPNProtocols: ['http/1.1'] });
        over.once('secureConnect', () => done(null, over));
        over.once('error', (failure) => done(failure, null));
      } else {
        done(null, socket);
      }
    };
    if (isDirect(options.hostname)) {
      const socket = net.connect(port, options.hostname.replace(/^\[|\]$/g, ''));
      socket.once('connect', () => go(null, socket));
      socket.once('error', (failure) => done(failure, null));
    } else {
      tunnel(options.hostname, port, go);
    }
  };
  let ours = false;
  globalThis.fetch = function fetch(...given) {
    if (!ours) {
      ours = true;
      void globalThis.Response; // loads it
      const standard = globalThis[key];
      if (standard) globalThis[key] = new standard.constructor({ connect });
    }
    return original(...given);
  };
}
