package broker

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// echo answers each request on conn with as little work as possible, so that a
// benchmark measures the broker and the sockets.
func echo(r io.Reader, w io.Writer, id fleet.DeviceID) {
	var buf [4096]byte
	var out []byte
	fill := 0
	for {
		n, err := r.Read(buf[fill:])
		if err != nil {
			return
		}
		fill += n
		out = out[:0]
		rest := buf[:fill]
		for {
			length, used := binary.Uvarint(rest[min(1, len(rest)):])
			if used <= 0 || len(rest) < 1+used+int(length) {
				break
			}
			packet := string(rest[1+used : 1+used+int(length)])
			rest = rest[1+used+int(length):]
			if _, after, ok := strings.Cut(packet, `"id":`); ok {
				rpcID, _, _ := strings.Cut(after, ",")
				body := append(str(upTopic(id)), `{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":`+rpcID+
					`,"result":{"content":[{"type":"text","text":"true"}],"isError":false}}}`...)
				out = append(out, frame(0x30, body)...)
			}
		}
		fill = copy(buf[:], rest)
		if _, err := w.Write(out); err != nil {
			return
		}
	}
}

func startEchoes(t testing.TB, b *system, n int) {
	t.Helper()
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	for i := range n {
		d := connectRaw(t, b, connectPacket{clientID: testClientID(i)})
		_ = d.conn.SetReadDeadline(time.Time{})
		wg.Go(func() { echo(d.r, d.conn, d.id) })
		t.Cleanup(func() { d.conn.Close() })
	}
	fleettest.Eventually(t, "onboarding", func() bool { return b.Stats().Onboarding == 0 })
}

// BenchmarkCall measures calls to 64 devices over real sockets, with several numbers of calls in
// flight.
func BenchmarkCall(bench *testing.B) {
	const devices = 64
	for _, inFlight := range []int{1, 64} {
		bench.Run(fmt.Sprintf("in-flight=%d", inFlight), func(bench *testing.B) {
			b, _ := start(bench, nil)
			startEchoes(bench, b, devices)
			ids := make([]fleet.DeviceID, devices)
			for i := range ids {
				ids[i] = testID(i)
			}
			bench.ReportAllocs()
			bench.ResetTimer()
			var next atomic.Int64
			var wg sync.WaitGroup
			for w := range inFlight {
				wg.Go(func() {
					for next.Add(1) <= int64(bench.N) {
						if _, err := makeCall(b, ids[w], "self.audio_speaker.set_volume", `{"volume":50}`, deadline, nil); err != nil {
							bench.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			bench.ReportMetric(float64(bench.N)/bench.Elapsed().Seconds(), "calls/s")
		})
	}
}

// BenchmarkReconnect measures authenticated and onboarded connections, 64 at a time.
func BenchmarkReconnect(bench *testing.B) {
	b, _ := start(bench, nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for n := next.Add(1); n <= int64(bench.N); n = next.Add(1) {
				conn, err := net.Dial("tcp", b.Addr().String())
				if err != nil {
					bench.Error(err)
					return
				}
				_, _ = conn.Write(connectPacket{clientID: testClientID(int(n % 4096)), keepalive: 60}.bytes())
				if _, err := conn.Read(make([]byte, 4)); err != nil {
					bench.Error(err)
				}
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
		})
	}
	wg.Wait()
	bench.ReportMetric(float64(bench.N)/bench.Elapsed().Seconds(), "connects/s")
}

// TestIdleMemory measures what each idle device costs the process, which in this test includes
// the devices' ends of the connections.
func TestIdleMemory(t *testing.T) {
	devices, _ := strconv.Atoi(os.Getenv("BROKER_IDLE_DEVICES"))
	if devices == 0 {
		t.Skip("set BROKER_IDLE_DEVICES to measure")
	}
	b, _ := start(t, nil)
	runtime.GC()
	before := rss(t)
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	inUse := heap.HeapInuse + heap.StackInuse
	for round := range 3 {
		conns := make([]net.Conn, devices)
		for i := range conns {
			conns[i] = idle(t, b, i)
		}
		fleettest.Eventually(t, "onboarding", func() bool {
			return b.Stats().Onboarding == 0 && b.Stats().Connections == int64(
				devices)
		})
		runtime.GC()
		runtime.ReadMemStats(&heap)
		t.Logf("round %d: %d KiB RSS a device, %d B of heap and stacks", round, (rss(t)-before)/devices/1024,
			int(heap.HeapInuse+heap.StackInuse-inUse)/devices)
		for _, c := range conns {
			c.Close()
		}
		fleettest.Eventually(t, "the end", func() bool { return b.Stats().Sockets == 0 })
	}
}

// idle connects a device that answers initialize and then sends nothing.
func idle(t *testing.T, b *system, n int) net.Conn {
	conn, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var buf [512]byte
	_, _ = conn.Write(connectPacket{clientID: testClientID(n), keepalive: 60}.bytes())
	for at := 0; ; {
		k, err := conn.Read(buf[at:])
		if err != nil {
			t.Fatal(err)
		}
		at += k
		if _, after, ok := strings.Cut(string(buf[:at]), `"id":`); ok {
			rpcID, _, _ := strings.Cut(after, ",")
			_, _ = conn.Write(frame(0x30, append(str(upTopic(testID(n))), `{"type":"mcp","payload":{"jsonrpc":"2.0","id":`+rpcID+
				`,`+initResult+`}}`...)))
			return conn
		}
	}
}

func rss(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages, _ := strconv.Atoi(strings.Fields(string(b))[1])
	return pages * os.Getpagesize()
}
