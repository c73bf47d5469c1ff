package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An unreliable bus loses, repeats, delays and truncates batches between two streams.
type unreliable struct {
	mu     sync.Mutex
	random *rand.Rand
	faults float64                  // probability of each fault
	down   bool                     // nothing passes, and publishing fails
	lossy  bool                     // nothing passes, and publishing succeeds
	ends   [2]*stream               // publish to each other
	links  [2]chan func()           // in order
	sent   [2]int                   // batches that were published, by stream
	bytes  [2]int                   // of them
	check  func(from int, b header) // of each batch that is published; nil for none
}

var errDown = errors.New("no connection")

func newUnreliable(t *testing.T, ctx context.Context, seed uint64, received func(to int, f frame)) *unreliable {
	u := &unreliable{random: rand.New(rand.NewPCG(seed, 0))}
	for i := range 2 {
		u.ends[i] = newStream(latestVersion, 1, 1, func(b []byte) error { return u.publish(i, b) },
			func(f frame) { received(i, f) })
		u.links[i] = make(chan func(), 1<<16)
	}
	for i := range 2 {
		go func() {
			for {
				select {
				case deliver := <-u.links[i]:
					deliver()
				case <-ctx.Done():
					return
				}
			}
		}()
		go u.ends[i].run(ctx)
	}
	return u
}

func (u *unreliable) happens() bool { return u.random.Float64() < u.faults }

func (u *unreliable) publish(from int, b []byte) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	h, _, _ := parseHeader(b)
	if u.check != nil {
		u.check(from, h)
	}
	if u.down {
		return errDown
	}
	u.sent[from]++
	u.bytes[from] += len(b)
	if u.lossy || u.happens() {
		return nil
	}
	to := u.ends[1-from]
	b = bytes.Clone(b)
	deliver := func() {
		if h, frames, err := parseHeader(b); err == nil {
			_ = to.handle(h, frames)
		}
	}
	if u.happens() {
		b = b[:u.random.IntN(len(b))]
	}
	if u.happens() {
		u.links[1-from] <- deliver
	}
	if u.happens() { // the batch comes after later ones
		time.AfterFunc(time.Duration(u.random.IntN(3000))*time.Millisecond, deliver)
		return nil
	}
	pause := time.Duration(0)
	if u.happens() {
		pause = time.Duration(u.random.IntN(20)) * time.Millisecond
	}
	u.links[1-from] <- func() { time.Sleep(pause); deliver() }
	return nil
}

func (u *unreliable) set(faults float64, down, lossy bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.faults, u.down, u.lossy = faults, down, lossy
}

// numbered is a frame's body: its number, then filler.
func numbered(n uint64, size int) []byte {
	return append(binary.AppendUvarint(nil, n), bytes.Repeat([]byte{byte(n)}, size)...)
}

func TestStreamModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStream(t, seed) })
		})
	}
}

func testStream(t *testing.T, seed uint64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer time.Sleep(time.Minute) // until all goroutines have ended
	defer cancel()
	var mu sync.Mutex
	var got [2]uint64
	u := newUnreliable(t, ctx, seed, func(to int, f frame) {
		mu.Lock()
		defer mu.Unlock()
		n, filler, err := uvarint(f.body)
		if got[to]++; err != nil || n != got[to] || f.conn != n || f.kind != frameReceive {
			t.Errorf("end %d received frame %d, want %d (%v)", to, n, got[to], err)
		}
		for _, b := range filler {
			if b != byte(n) {
				t.Fatalf("frame %d has changed", n)
			}
		}
	})
	random := rand.New(rand.NewPCG(seed, 1))
	var added [2]uint64
	for range 40 {
		u.set([]float64{0, 0.05, 0.3}[random.IntN(3)], random.IntN(8) == 0, random.IntN(8) == 0)
		for range random.IntN(60) {
			i, size := random.IntN(2), random.IntN(200)
			if random.IntN(20) == 0 {
				size = random.IntN(400 << 10)
			}
			if err := u.ends[i].add(frameReceive, added[i]+1, numbered(added[i]+1, size)); err == nil {
				added[i]++
			} else if !errors.Is(err, errFull) {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		if random.IntN(4) == 0 {
			u.ends[random.IntN(2)].resume()
		}
	}
	u.set(0, false, false)
	time.Sleep(time.Minute)
	mu.Lock()
	defer mu.Unlock()
	if got[0] != added[1] || got[1] != added[0] {
		t.Errorf("received %v, added %v at the other end", got, added)
	}
	for i, s := range u.ends {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.sent) > 0 || s.queued > 0 || s.size > 0 || len(s.queue) > 0 {
			t.Errorf("stream %d still has %d batches of %d bytes and %d bytes queued", i, len(s.sent), s.size, s.queued)
		}
	}
}

// TestStreamRepeatsOnce checks that the loss of a batch at the start of a full window costs one
// repetition of the window, not one for each batch in it.
func TestStreamRepeatsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got int
		u := newUnreliable(t, ctx, 1, func(int, frame) { got++ })
		u.set(0, false, true)
		body := make([]byte, batchSize-maxFrameHeader)
		_ = u.ends[0].add(frameReceive, 1, body)
		synctest.Wait()
		u.set(0, false, false)
		for range 20 {
			_ = u.ends[0].add(frameReceive, 1, body)
		}
		begin := time.Now()
		synctest.Wait()
		if got != 21 || time.Since(begin) > 0 {
			t.Errorf("%d of 21 frames after %v", got, time.Since(begin))
		}
		if u.bytes[0] > 43*batchSize {
			t.Errorf("%d KiB published for %d KiB", u.bytes[0]>>10, 21*batchSize>>10)
		}
	})
}

// TestStreamLostEnd checks that the loss of the last batch is discovered by the next beat, and at once
// when the connection to the bus is back.
func TestStreamLostEnd(t *testing.T) {
	for _, resumed := range []bool{false, true} {
		for from := range 2 {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var got int
				u := newUnreliable(t, ctx, 1, func(int, frame) { got++ })
				time.Sleep(1500 * time.Millisecond)
				u.set(0, false, true)
				_ = u.ends[from].add(frameReceive, 1, nil)
				synctest.Wait()
				u.set(0, false, false)
				begin, limit := time.Now(), beatEvery
				if resumed {
					u.ends[0].resume() // whichever end lost the connection
					limit = 0
				}
				time.Sleep(limit)
				synctest.Wait()
				if got != 1 {
					t.Errorf("received %d frames after %v", got, time.Since(begin))
				}
			})
		}
	}
}

func TestStreamBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got int
		u := newUnreliable(t, ctx, 1, func(int, frame) { got++ })
		u.set(0, true, false)
		s, body, n := u.ends[0], make([]byte, 100<<10), 0
		for ; n < 10000; n++ {
			if err := s.add(frameReceive, 1, body); err != nil {
				if !errors.Is(err, errFull) {
					t.Fatal(err)
				}
				break
			}
		}
		synctest.Wait()
		if held := n * len(body); held > maxQueued || held < maxQueued-2*len(body) {
			t.Errorf("%d bytes are held, want about %d", held, maxQueued)
		}
		if s.size > window+batchSize {
			t.Errorf("%d bytes are in batches", s.size)
		}
		if err := s.add(frameReceive, 1, make([]byte, maxBody+1)); !errors.Is(err, errTooLong) {
			t.Errorf("a frame that is too long: %v", err)
		}
		if err := s.announce(framePresent, 1, body); err != nil {
			t.Errorf("a connection is not announced: %v", err)
		}
		u.set(0, false, false)
		time.Sleep(5 * beatEvery) // the first repeat, and an acknowledgement for each window
		synctest.Wait()
		if got != n+1 {
			t.Errorf("received %d of %d frames", got, n+1)
		}
		if err := s.add(frameReceive, 1, body); err != nil {
			t.Errorf("after everything has arrived: %v", err)
		}
	})
}

// TestStreamStop checks that nothing is published or received after stop, and that rest returns what
// did not arrive.
func TestStreamStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stopped bool
		u := newUnreliable(t, ctx, 1, func(to int, f frame) {
			if stopped && to == 0 {
				t.Error("received after stop")
			}
		})
		u.check = func(from int, h header) {
			if stopped && from == 0 {
				t.Errorf("published batch %d after stop", h.number)
			}
		}
		s := u.ends[0]
		_ = s.add(frameReceive, 1, nil)
		_ = u.ends[1].add(frameReceive, 1, nil)
		time.Sleep(time.Second)
		u.set(0, false, true)
		_ = s.add(frameReceive, 2, nil)
		synctest.Wait()
		u.set(0, true, false)
		_ = s.add(frameReceive, 3, nil)
		synctest.Wait()
		u.set(0, false, false)
		s.stop()
		stopped = true
		_ = s.add(frameReceive, 4, nil)
		_ = u.ends[1].add(frameReceive, 1, nil)
		s.resume()
		time.Sleep(5 * time.Second)
		var conns []uint64
		for _, frames := range s.rest() {
			for len(frames) > 0 {
				var f frame
				f, frames, _ = nextFrame(frames)
				conns = append(conns, f.conn)
			}
		}
		if !slices.Equal(conns, []uint64{2, 3, 4}) {
			t.Errorf("the rest is %v, want 2, 3 and 4", conns)
		}
	})
}

func TestStreamIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		u := newUnreliable(t, ctx, 1, func(int, frame) {})
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if u.sent[0] > 101 || u.sent[0] < 99 {
			t.Errorf("%d batches in 100 s", u.sent[0])
		}
	})
}
