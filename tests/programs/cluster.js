/*
 * Echo servers of several processes:
 *     cluster.js PORT round-robin   the parent accepts and passes each connection to a worker
 *     cluster.js PORT shared        the workers accept from a listener that they share
 *     cluster.js PORT handle        the parent accepts, answers some lines, and then passes the socket to a child
 * SIGTERM ends it; it prints only what goes wrong.
 */
'use strict';
const cluster = require('cluster');
const { fork } = require('child_process');
const net = require('net');

const port = Number(process.argv[2]);
const mode = process.argv[3];
const WORKERS = 2;
/* As many as echo_check.py sends. */
const GREETINGS = 20;

function fail(what) {
    return (error) => console.log(`${mode} ${process.pid}: ${what}: ${error}`);
}

function echo(socket) {
    socket.on('error', fail('connection'));
    socket.pipe(socket);
}

function end(children) {
    process.on('SIGTERM', () => {
        for (const child of children) child.kill('SIGTERM');
        process.exit(0);
    });
}

function greetAndPass(socket, child) {
    let greetings = 0;
    let line = '';
    socket.on('error', fail('greeting'));
    socket.on('data', (data) => {
        line += data;
        if (!line.endsWith('\n')) return;
        line = '';
        if (++greetings < GREETINGS) {
            socket.write('go\n');
            return;
        }
        /* The client waits for this answer, so nothing has been read that is the child's. */
        socket._handle.readStop();
        socket.write('go\n', () => child.send('socket', socket));
    });
}

if (process.argv[4] === 'child') {
    process.on('message', (message, socket) => {
        echo(socket);
        socket.resume();
    });
} else if (mode === 'handle') {
    const children = [];
    for (let n = 0; n < WORKERS; n++) children.push(fork(__filename, [port, mode, 'child']));
    end(children);
    let next = 0;
    net.createServer((socket) => greetAndPass(socket, children[next++ % WORKERS])).listen(port, '127.0.0.1');
} else if (cluster.isPrimary) {
    cluster.schedulingPolicy = mode === 'shared' ? cluster.SCHED_NONE : cluster.SCHED_RR;
    const children = [];
    for (let n = 0; n < WORKERS; n++) children.push(cluster.fork().process);
    end(children);
} else {
    net.createServer(echo).listen(port, '127.0.0.1');
}
