# Built for the platform it will run on from the platform it is built on:
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=unknown
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION" -o /lateen ./cmd/lateen

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /lateen /lateen
USER 65532:65532
ENTRYPOINT ["/lateen"]
