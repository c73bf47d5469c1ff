package voice

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// Each conversation carries only its own device's audio, in both directions, whatever is sent and
// from wherever. Devices talk, move, hang up and call again. Others send copies of their packets,
// damaged and shifted packets, and packets with their ssrc and another key. At the end all
// resources are released.
func TestNoDatagramCrosses(t *testing.T) {
	up := server(t, voicetest.Options{Echo: true})
	w := start(t, up.URL(true), nil)
	goroutines, before := runtime.NumGoroutine(), allocated()
	const devices = 24
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	end := time.Now().Add(2 * time.Second)

	var mu sync.Mutex
	var overheard [][]byte // packets sent by devices
	// All sockets stay open: if one was closed, another device could get its port, and with it
	// datagrams that were under way to the first.
	var sockets []*net.UDPConn
	var heardOwn atomic.Int64
	var talking, listening sync.WaitGroup
	for i := range devices {
		talking.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			own := fmt.Sprintf("device %d ", i)
			for n := 0; time.Now().Before(end); n++ {
				b := newBoard(t, i)
				if i%2 == 1 {
					b.remote = "192.0.2.44" // its first packets are not accepted at once
				}
				b.talk(w.Relay, boardHello)
				b.open()
				listen := func(conn *net.UDPConn) {
					mu.Lock()
					sockets = append(sockets, conn)
					mu.Unlock()
					listening.Go(func() {
						buf := make([]byte, 2000)
						for {
							n, err := conn.Read(buf)
							if err != nil {
								return
							}
							h, ok := parseHeader(buf[:n])
							frame := seal(t, b.key, b.nonce, h.timestamp, h.sequence, buf[headerSize:n])[headerSize:]
							if !ok || !strings.HasPrefix(string(frame[1:]), own) {
								t.Errorf("device %d heard %q", i, frame)
								return
							}
							heardOwn.Add(1)
						}
					})
				}
				listen(b.udp)
				for range 20 + rnd.IntN(60) {
					b.sequence++
					packet := seal(t, b.key, b.nonce, 0, b.sequence, speech(own+fmt.Sprint(n)))
					_, _ = b.udp.Write(packet)
					mu.Lock()
					overheard = append(overheard, packet)
					mu.Unlock()
					if rnd.IntN(40) == 0 { // another port
						conn, err := net.DialUDP("udp", nil, b.udp.RemoteAddr().(*net.UDPAddr))
						if err != nil {
							t.Error(err)
							return
						}
						b.udp = conn
						listen(conn)
					}
					time.Sleep(time.Millisecond)
				}
				b.conversation.Receive("goodbye", b.session, []byte(`{"type":"goodbye"}`))
			}
		})
	}
	var hostile sync.WaitGroup
	for i := range 4 {
		hostile.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 1000+uint64(i)))
			conn, err := net.Dial("udp", w.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			key := make([]byte, 16)
			for time.Now().Before(end) {
				time.Sleep(200 * time.Microsecond)
				mu.Lock()
				if len(overheard) < 2 {
					mu.Unlock()
					continue
				}
				packet := append([]byte(nil), overheard[rnd.IntN(len(overheard))]...)
				another := overheard[rnd.IntN(len(overheard))]
				mu.Unlock()
				switch rnd.IntN(5) {
				case 0: // unchanged
				case 1: // with another ssrc
					copy(packet[4:8], another[4:8])
				case 2: // with a later sequence number
					binary.BigEndian.PutUint32(packet[12:], binary.BigEndian.Uint32(packet[12:])+1+rnd.Uint32N(100))
				case 3: // with another length
					packet = append(packet, 0)
					if rnd.IntN(2) == 0 {
						binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)-headerSize))
					}
				case 4: // forged
					packet = seal(t, hex.EncodeToString(key), hex.EncodeToString(packet[:headerSize]), 0,
						binary.BigEndian.Uint32(packet[12:])+rnd.Uint32N(10), speech("forged"))
				}
				_, _ = conn.Write(packet)
			}
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if n, err := conn.Read(make([]byte, 10)); err == nil {
				t.Errorf("%d bytes came back to a stranger", n)
			}
		})
	}
	talking.Wait()
	hostile.Wait()
	for _, conn := range sockets {
		conn.Close()
	}
	listening.Wait()
	if heardOwn.Load() < devices {
		t.Errorf("only %d frames came back", heardOwn.Load())
	}
	frames, damaged := 0, 0
	for _, s := range up.Sessions() {
		var index int
		if _, err := fmt.Sscanf(strings.ReplaceAll(s.Header.Get("Device-Id"), ":", ""), "02000000%04x", &index); err != nil {
			t.Fatal(err)
		}
		for _, f := range s.Frames() {
			frames++
			switch {
			case strings.HasPrefix(f.Data[1:], fmt.Sprintf("device %d ", index)):
			case strings.Contains(f.Data, "device ") || strings.Contains(f.Data, "forged"):
				t.Fatalf("the conversation of device %d got %q", index, f.Data)
			default:
				damaged++ // noise that decrypts to an Opus packet by chance: CTR has no checksum
			}
		}
	}
	if damaged > frames/20 {
		t.Errorf("%d of %d frames upstream are noise", damaged, frames)
	}
	fleettest.Eventually(t, "all conversations have ended", func() bool {
		n, _ := w.records.ended(fleet.EndedByDevice)
		return w.Stats().Open == 0 && n == len(up.Sessions())
	})
	if n := len(w.socket.channels); n != 0 {
		t.Errorf("%d channels are left", n)
	}
	up.Close()
	fleettest.Eventually(t, "goroutines are as at the start", func() bool {
		return runtime.NumGoroutine() <= goroutines+1
	})
	t.Logf("%d conversations, %d frames upstream, %d of noise, %d heard", len(up.Sessions()), frames, damaged, heardOwn.Load())
	// What the test and its voice server stored grows with the speed of the machine.
	up.Forget()
	overheard, sockets = nil, nil
	if after := allocated(); after > before+4<<20 {
		t.Errorf("%d KiB of memory more", (after-before)/1024)
	}
	runtime.KeepAlive(w)
}

// allocated returns the bytes of all objects on the heap that are still used. What the first
// collection only moves out of pools, the second frees.
func allocated() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
