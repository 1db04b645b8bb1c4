"""A WSGI application: /SIZE answers with bytes that a client can compute, and a body comes back as it was."""


def application(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    else:
        body = bytes(range(251)) * (int(environ["PATH_INFO"][1:]) // 251 + 1)
        body = body[:int(environ["PATH_INFO"][1:])]
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))])
    return [body]
