/*
 * Echo servers of several processes:
 *     cluster.js PORT round-robin   the parent accepts and passes each connection to a worker
 *     cluster.js PORT shared        the workers accept from a listener that they share
 *     cluster.js PORT handle        the parent accepts, answers the line that it leaves unread, and passes the socket
 * SIGTERM ends it; it prints only what goes wrong.
 */
'use strict';
const cluster = require('cluster');
const { fork } = require('child_process');
const net = require('net');

const port = Number(process.argv[2]);
const mode = process.argv[3];
const WORKERS = 2;

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

/* Echoes what follows the first line. */
function echoBehindLine(socket) {
    socket.on('error', fail('connection'));
    socket.on('readable', function skip() {
        for (let byte; (byte = socket.read(1)) !== null;) {
            if (byte[0] !== 10) continue;
            socket.removeListener('readable', skip);
            socket.pipe(socket);
            return;
        }
    });
}

if (process.argv[4] === 'child') {
    process.on('message', (message, socket) => {
        echoBehindLine(socket);
    });
} else if (mode === 'handle') {
    const children = [];
    for (let n = 0; n < WORKERS; n++) children.push(fork(__filename, [port, mode, 'child']));
    end(children);
    let next = 0;
    net.createServer({ pauseOnConnect: true }, (socket) => {
        const child = children[next++ % WORKERS];
        socket.on('error', fail('greeting'));
        socket.write('go\n', () => child.send('socket', socket));
    }).listen(port, '127.0.0.1');
} else if (cluster.isPrimary) {
    cluster.schedulingPolicy = mode === 'shared' ? cluster.SCHED_NONE : cluster.SCHED_RR;
    const children = [];
    for (let n = 0; n < WORKERS; n++) children.push(cluster.fork().process);
    end(children);
} else {
    net.createServer(echo).listen(port, '127.0.0.1');
}
