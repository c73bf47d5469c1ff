package door_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"fleetd/fleet/blobs"
	"fleetd/fleet/firmware"
	"fleetd/web/door"
)

// A downloadOrder is what the process with the edge has to do, as a line of JSON.
type downloadOrder struct {
	Chain, Key, CA []byte // of the edge's certificate
	Leader         door.Leader
	Paths          []string
}

// BenchmarkDownload measures the processor time of the leader for a download of 2 MB, with the image
// in S3. S3, the edge and four devices at a time are in another process.
func BenchmarkDownload(b *testing.B) {
	const size = 2 << 20
	for _, name := range []string{"core sends", "edge sends"} {
		b.Run(name, func(b *testing.B) {
			b.Setenv("AWS_ACCESS_KEY_ID", "fleetd-test")
			b.Setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
			child := exec.Command(os.Args[0], "-test.run=^TestDevicesOfBenchmark$", "-test.v")
			child.Env = append(os.Environ(), "FLEETD_BENCH_DEVICES=1")
			child.Stderr = os.Stderr
			in, err := child.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			out, err := child.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := child.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() { in.Close(); _ = child.Wait() }()
			lines := bufio.NewScanner(out)
			next := func(prefix string) string {
				for lines.Scan() {
					if rest, ok := bytes.CutPrefix(lines.Bytes(), []byte(prefix)); ok {
						return string(rest)
					}
				}
				b.Fatalf("the devices' process ended: %v", lines.Err())
				return ""
			}
			d := &depot{t: b, a: newAuthority(b), links: make(map[[32]byte]firmware.Link)}
			if d.store, err = blobs.Open(b.Context(), "s3://blobs/x?region=x&endpoint="+next("s3 ")); err != nil {
				b.Fatal(err)
			}
			defer d.store.Close()
			image := make([]byte, size)
			rand.NewChaCha8([32]byte{}).Read(image)
			key, err := d.store.PutFile(b.Context(), bytes.NewReader(image), size)
			if err != nil {
				b.Fatal(err)
			}
			c := d.core(1, func(o *firmware.DownloadsOptions) {
				if name == "core sends" {
					o.Addresses = nil
				}
			})
			cert := d.a.config("edge-1", "edge").Certificates[0]
			private, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
			if err != nil {
				b.Fatal(err)
			}
			order := downloadOrder{Leader: c.leader(),
				Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
				Key:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
				CA:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.a.cert.Raw})}
			for range b.N {
				_, path := d.link(key, size)
				order.Paths = append(order.Paths, path)
			}
			before := processorTime()
			b.ResetTimer()
			if err := json.NewEncoder(in).Encode(order); err != nil {
				b.Fatal(err)
			}
			next("done")
			b.StopTimer()
			b.ReportMetric(float64((processorTime()-before).Nanoseconds())/1e3/float64(b.N), "leader-cpu-µs/op")
		})
	}
}

// TestDevicesOfBenchmark is the other process of [BenchmarkDownload].
func TestDevicesOfBenchmark(t *testing.T) {
	if os.Getenv("FLEETD_BENCH_DEVICES") == "" {
		t.Skip("a part of BenchmarkDownload")
	}
	memory := s3mem.New()
	if err := memory.CreateBucket("blobs"); err != nil {
		t.Fatal(err)
	}
	s3 := httptest.NewServer(gofakes3.New(memory).Server())
	defer s3.Close()
	fmt.Printf("\ns3 %s\n", s3.URL)
	var order downloadOrder
	if err := json.NewDecoder(os.Stdin).Decode(&order); err != nil {
		return // the benchmark has failed
	}
	pair, err := tls.X509KeyPair(order.Chain, order.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(order.CA)
	e := startEdge(t, newAuthority(t), func(o *door.Options) {
		o.S3 = blobs.Transport(door.S3Timeout)
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}}
	})
	e.announce(t, order.Leader)
	paths := make(chan string, len(order.Paths))
	for _, p := range order.Paths {
		paths <- p
	}
	close(paths)
	var devices sync.WaitGroup
	for range 4 {
		devices.Go(func() {
			for path := range paths {
				resp, err := e.client.Get(e.url + path)
				if err != nil {
					t.Error(err)
					return
				}
				if n, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != http.StatusOK || n != 2<<20 || err != nil {
					t.Errorf("%s, %d bytes, %v", resp.Status, n, err)
				}
				resp.Body.Close()
			}
		})
	}
	devices.Wait()
	fmt.Println("\ndone")
}
