package voice

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"fleetd/broker/voice/voicetest"
)

// BenchmarkConversations relays a frame of 60 ms each way for each of many conversations, at
// their pace. It measures the time of the round trip, the lost frames, and the memory of a
// conversation. For comparison, a plain UDP echo of the same packets in the same minute measures
// the machine's share.
func BenchmarkConversations(b *testing.B) {
	for _, n := range []int{1, 100, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			up := server(b, voicetest.Options{Echo: true})
			w := start(b, up.URL(true), nil)
			before := heap()
			boards := make([]*board, n)
			for i := range boards {
				boards[i] = newBoard(b, i)
				boards[i].talk(w.Relay, boardHello)
			}
			for _, d := range boards {
				d.open()
			}
			b.ReportMetric(float64(heap()-before)/float64(n)/1024, "KiB/conversation")
			echo, closeEcho := echoServer(b)
			defer closeEcho()
			for name, pace := range map[string]func(*board) (time.Duration, bool){
				"": func(d *board) (time.Duration, bool) { return d.roundTrip() },
				"echo_": func(d *board) (time.Duration, bool) {
					relay := d.udp
					conn, err := net.Dial("udp", echo)
					if err != nil {
						return 0, false
					}
					d.udp = conn.(*net.UDPConn)
					took, ok := d.roundTrip()
					conn.Close()
					d.udp = relay
					return took, ok
				}} {
				all, lost := paced(boards, max(1, min(b.N, 50)), pace)
				if len(all) == 0 {
					b.Fatal("nothing came back")
				}
				b.ReportMetric(float64(all[len(all)/2].Microseconds()), name+"p50_us")
				b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), name+"p99_us")
				b.ReportMetric(float64(lost), name+"lost")
			}
		})
	}
}

// paced sends a frame from every board each 60 ms, and returns the sorted round-trip times.
func paced(boards []*board, frames int, roundTrip func(*board) (time.Duration, bool)) (all []time.Duration, lost int) {
	var mu sync.Mutex
	var talking sync.WaitGroup
	for i, d := range boards {
		talking.Go(func() {
			time.Sleep(time.Duration(i) * frame60 / time.Duration(len(boards)))
			beat := time.NewTicker(frame60)
			defer beat.Stop()
			for range frames {
				took, ok := roundTrip(d)
				mu.Lock()
				if ok {
					all = append(all, took)
				} else {
					lost++
				}
				mu.Unlock()
				<-beat.C
			}
		})
	}
	talking.Wait()
	slices.Sort(all)
	return all, lost
}

var benchFrame = string(make([]byte, 120))

func (b *board) roundTrip() (time.Duration, bool) {
	begin := time.Now()
	b.say(benchFrame, 0)
	var buf [maxPacket]byte
	_ = b.udp.SetReadDeadline(begin.Add(time.Second))
	_, err := b.udp.Read(buf[:])
	return time.Since(begin), err == nil
}

func echoServer(b *testing.B) (addr string, stop func()) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		buf := make([]byte, maxPacket)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buf[:n], from)
		}
	}()
	return conn.LocalAddr().String(), func() { conn.Close() }
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
