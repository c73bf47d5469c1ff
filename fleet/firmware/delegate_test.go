package firmware_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// oneLink is a link that is good, and a blob store with addresses.
type oneLink struct {
	fleet.BlobFiles
	link firmware.Link
}

func (o *oneLink) FirmwareLink(context.Context, []byte, time.Time) (firmware.Link, error) {
	return o.link, nil
}
func (o *oneLink) FinishFirmwareLink(context.Context, []byte, time.Time) error { return nil }
func (o *oneLink) Address(context.Context, string, time.Duration) (fleet.BlobAddress, error) {
	return fleet.BlobAddress{URL: "https://s3.example/x", ETag: "e"}, nil
}

// An edge that dies leaves its place ten seconds after its last report. If it was cut off only, its
// download counts from its next report on.
func TestEdgeFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		l, address := firmware.NewLink("", firmware.Link{Deployment: uuid.Must(uuid.NewV7()), Image: "i", Size: size}, time.Hour,
			time.Now())
		token := strings.Split(address, "/")[2]
		at := &oneLink{link: l}
		var mu sync.Mutex
		var seen []firmware.Transfer
		d := firmware.NewDownloads(firmware.DownloadsOptions{Links: at, Blobs: at, Addresses: at, MaxConcurrent: 1,
			Observe: func(o firmware.Transfer) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, o)
			}})
		last := func() firmware.Transfer {
			mu.Lock()
			defer mu.Unlock()
			return seen[len(seen)-1]
		}
		begin := func() firmware.Progress {
			t.Helper()
			download, err := d.Begin(t.Context(), token)
			if err != nil {
				t.Fatal(err)
			}
			to, ok, err := download.Delegate(t.Context(), "edge-1", 0, size)
			if !ok || err != nil {
				t.Fatalf("delegated %v, %v", ok, err)
			}
			download.End()
			return to.Progress
		}
		wants := func(what string, kind fleet.EvidenceKind, sent int64, room int) {
			t.Helper()
			synctest.Wait()
			if last := last(); last.Kind != kind || last.Sent != sent || d.Room() != room {
				t.Errorf("%s: observed %+v, room for %d", what, last, d.Room())
			}
		}
		report := func(p firmware.Progress) {
			t.Helper()
			if goesOn, err := d.Report(t.Context(), "edge-1", p); !goesOn || err != nil {
				t.Errorf("goes on %v, %v", goesOn, err)
			}
		}
		p := begin()
		time.Sleep(9 * time.Second)
		p.Sent = 1000
		report(p)
		time.Sleep(9 * time.Second)
		wants("with reports", fleet.EvidenceBytes, 1000, 0)
		time.Sleep(2 * time.Second)
		wants("without", fleet.EvidenceCut, 1000, 1)
		p.Sent = 2000
		report(p)
		report(p)
		wants("cut off only", fleet.EvidenceCut, 1000, 0) // the next event comes once bytes move again
		p.Sent, p.Ended = size, true
		report(p)
		wants("at the end", fleet.EvidenceDownloaded, size, 1)

		p = begin()
		p.Sent, p.Ended, p.Cause = 10, true, firmware.TransferStuck
		report(p)
		wants("the device accepts nothing", fleet.EvidenceCut, 10, 1)
		if !last().Reason.Is(firmware.TransferStuck) {
			t.Errorf("observed %+v", last())
		}
	})
}
