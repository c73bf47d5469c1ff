# syntax=docker/dockerfile:1
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -o /out/fleetd ./cmd/fleetd

# No PostgreSQL binaries: with containers the database runs in another one.
FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --home-dir /data fleetd && install -d -o fleetd -g fleetd -m 700 /data
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/fleetd /usr/local/bin/fleetd
USER fleetd
VOLUME /data
ENV FLEETD_DATA_DIR=/data
EXPOSE 8080 1883 8883 8884/udp
# The image has no HTTP client; bash can open a TCP connection.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9464 && printf 'GET /healthz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && head -1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["fleetd"]
CMD ["serve"]
