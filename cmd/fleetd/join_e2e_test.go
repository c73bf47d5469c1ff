package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// If a board has joined, a kill of fleetd at any moment does not lose it: it is in the
// list, and connects with its credentials.
func TestBoardsThatJoinOutliveAKill(t *testing.T) {
	d := newDaemon(t)
	const boards, kills = 300, 2
	for kill := range kills {
		given := d.joinUntilKilled(kill, boards)
		d.start()
		if len(given) == 0 || len(given) == boards {
			t.Fatalf("%d of %d boards were let in before the kill: it proves nothing", len(given), boards)
		}
		shown := d.register()
		lost, refused := 0, 0
		for id, c := range given {
			if _, ok := shown[strings.ReplaceAll(id, ":", "")]; !ok {
				lost++
			}
			if d.connectWith(c) != 0 {
				refused++
			}
		}
		if lost > 0 || refused > 0 {
			t.Errorf("kill %d: of %d boards that were let in %d are in no list, %d are refused", kill, len(given), lost, refused)
		}
	}
}

// joinUntilKilled lets boards join at the same time, kills fleetd when a third of them
// have joined, and returns the boards that got credentials.
func (d *daemon) joinUntilKilled(round, boards int) map[string]credential {
	var mu sync.Mutex
	given := map[string]credential{}
	third := make(chan struct{})
	var wg sync.WaitGroup
	turns := make(chan struct{}, 24)
	for i := range boards {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			id := fmt.Sprintf("02:00:00:00:%02x:%02x", round*2+i/256, i%256)
			a, err := d.poll(id, boardClientID)
			if err != nil || a.MQTT.Password == "" {
				return // the kill came first
			}
			mu.Lock()
			defer mu.Unlock()
			if given[id] = a.MQTT; len(given) == boards/3 {
				close(third)
			}
		})
	}
	<-third
	d.kill()
	wg.Wait()
	return given
}
