"""HTTP service of a broker: health, readiness, metrics, and the web console of the whole cluster.

`service.py` assembles it, `server.py` answers requests, `live.py` serves the WebSocket; `http.py` has the endpoints without
login. The pages are in `web/` and `templates/`.
"""
