# For linux/amd64 and linux/arm64, and with --target windows for windows/amd64. No stage but the first runs anything,
# and that one runs on the platform it is built on, so each can be built on any of them:
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 .
# `make image` writes the same image without an engine; a test in test/image compares the two.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=unknown
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./cmd/lateen
RUN mkdir -p /out/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ca-certificates.crt && \
    mkdir -m 1777 /out/tmp && ln -s lateen /out/velero

FROM mcr.microsoft.com/windows/nanoserver:ltsc2022 AS windows
ARG VERSION=unknown
LABEL org.opencontainers.image.title="lateen"
LABEL org.opencontainers.image.description="Node agent for Velero"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="$VERSION"
COPY --from=build /out/lateen.exe /lateen.exe
USER ContainerUser
ENTRYPOINT ["/lateen.exe"]

FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title="lateen"
LABEL org.opencontainers.image.description="Node agent for Velero"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="$VERSION"
COPY --from=build /out/ /
USER 65532:65532
ENTRYPOINT ["/lateen"]
