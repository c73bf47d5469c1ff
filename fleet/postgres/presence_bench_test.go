package postgres_test

import (
	"fmt"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// A storm: 10,000 devices lose their connections, and all come back.
func BenchmarkPresenceStorm(b *testing.B) {
	ctx, s := b.Context(), newStore(b)
	const devices = 10_000
	var polls []enrolment.PollRecord
	for i := range devices {
		polls = append(polls, poll(fleet.DeviceID(fmt.Sprintf("d%05d", i)), now()))
	}
	if err := s.SavePolls(ctx, polls); err != nil {
		b.Fatal(err)
	}
	epoch := int64(0)
	for b.Loop() {
		epoch++
		var lost, back []fleet.PresenceChange
		for _, p := range polls {
			lost = append(lost, fleet.PresenceChange{Device: p.Poll.Device, Presence: fleet.PresenceOffline, Since: now(),
				Evidence: fleet.Because(fleet.PresenceBroke, "detail", fleet.Because(fleet.CauseSocketClosed)), LastSeen: now()})
		}
		if err := s.SavePresence(ctx, lost); err != nil {
			b.Fatal(err)
		}
		for _, p := range polls {
			back = append(back, connect(p.Poll.Device, epoch, now()))
		}
		if err := s.SavePresence(ctx, back); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(2*devices)*float64(b.N)/b.Elapsed().Seconds(), "changes/s")
}
