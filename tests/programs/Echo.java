import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/** An echo server: java Echo.java PORT blocking|nio [ADDRESS]. SIGTERM ends it; it prints only what goes wrong. */
public class Echo {
    public static void main(String[] words) throws IOException {
        int port = Integer.parseInt(words[0]);
        InetAddress address = InetAddress.getByName(words.length > 2 ? words[2] : "127.0.0.1");
        if (words[1].equals("nio")) {
            serveChannels(address, port);
        } else {
            serveStreams(address, port);
        }
    }

    /** A thread for each connection. */
    private static void serveStreams(InetAddress address, int port) throws IOException {
        try (ServerSocket server = new ServerSocket(port, 64, address)) {
            while (true) {
                Socket socket = server.accept();
                new Thread(() -> echo(socket)).start();
            }
        }
    }

    private static void echo(Socket socket) {
        try (socket) {
            socket.getInputStream().transferTo(socket.getOutputStream());
        } catch (IOException error) {
            System.out.println("server: " + error);
        }
    }

    /** All connections in one thread; what cannot be sent yet waits in the key's buffer. */
    private static void serveChannels(InetAddress address, int port) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel server = ServerSocketChannel.open();
        server.bind(new InetSocketAddress(address, port), 64);
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel channel = server.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(1 << 16));
                } else {
                    move(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    private static void move(SelectionKey key) {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        try {
            boolean ended = key.isReadable() && channel.read(buffer) < 0;
            buffer.flip();
            channel.write(buffer);
            boolean left = buffer.hasRemaining();
            buffer.compact();
            if (ended) {
                // Reading stops while bytes are left, so nothing is when the end comes.
                channel.close();
            } else {
                key.interestOps(left ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
            }
        } catch (IOException error) {
            System.out.println("server: " + error);
            key.cancel();
        }
    }
}
