package door

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/firmware"
	"fleetd/internal/bounded"
	"fleetd/web/device"
)

// S3Timeout is how long S3 may make no progress. A stock device waits 30 seconds for the headers, and
// the core must have time to send the image instead.
const S3Timeout = 5 * time.Second

const (
	// s3Pause is how long the core sends all images after S3 was not reachable.
	s3Pause = 30 * time.Second

	reportEvery       = time.Second
	lastReportTimeout = 2 * time.Second
	// maxUnfinished bounds the links whose progress is kept for the next core.
	maxUnfinished = 4096
)

// The last field of the [edgeHeader] of a download says whether the edge can send the file itself.
const (
	readsS3 = "s3"
	failsS3 = "s3-failed" // it should, but S3 is not reachable from it
)

// downloads are the files that this edge reads from S3 and sends to devices. The core that leads
// decides about each, and is notified of their progress; the next core learns all that they are.
type downloads struct {
	s3     http.RoundTripper // nil: the core sends all files
	wake   chan struct{}
	paused atomic.Int64 // until this time (Unix nanoseconds) the core sends all files

	mu   sync.Mutex
	open map[uuid.UUID]*download // until the core has recorded their end
	term int64                   // the leader of this term knows unfinished
	// unfinished are recorded ends before the last byte, by token. The device may go on.
	unfinished *bounded.Cache[string, firmware.Progress]
}

func newDownloads(s3 http.RoundTripper) *downloads {
	return &downloads{s3: s3, wake: make(chan struct{}, 1), open: make(map[uuid.UUID]*download),
		unfinished: bounded.New[string, firmware.Progress](maxUnfinished)}
}

func (s *downloads) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// field returns the last field of the header of a request.
func (s *downloads) field(p *passage, r *http.Request) string {
	switch {
	case s.s3 == nil || r.Method != http.MethodGet || !device.IsDownload(r.URL.Path):
		return ""
	case p.failedS3 || time.Now().UnixNano() < s.paused.Load():
		return " " + failsS3
	}
	return " " + readsS3
}

// A download is the body of the answer to a device: a part of a file in S3. It reads the next bytes
// after the proxy has written the last ones to the device.
type download struct {
	door *Door
	to   firmware.Delegation

	ctx    context.Context
	cancel context.CancelFunc
	body   io.ReadCloser // of S3
	from   int64         // where body began
	at     int64         // offset of the next byte

	writing time.Time // since when the proxy writes to the device
	failed  bool      // S3 ended it

	// These belong to the lock of downloads.
	progress firmware.Progress
}

var (
	errCutByCore = errors.New("the core has ended the download")
	errS3        = errors.New("S3 ended the download")
)

// takeOver makes this edge send the file, if the answer of the core asks for it.
func (d *Door) takeOver(r *http.Request, resp *http.Response) error {
	text := resp.Header.Get(device.DelegationHeader)
	resp.Header.Del(device.DelegationHeader) // it must not reach the device
	if text == "" || d.downloads.s3 == nil {
		return nil
	}
	var to firmware.Delegation
	if err := json.Unmarshal([]byte(text), &to); err != nil || to.Length <= 0 || to.Offset < 0 {
		return errors.New("the answer of the core cannot be read") // err could have a part of the address
	}
	// The context of r counts the connections to the core, and ends when the device has gone.
	f := &download{door: d, to: to, at: to.Offset, writing: time.Now(), progress: to.Progress}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	stop := context.AfterFunc(r.Context(), f.cancel)
	if err := f.connect(); err != nil {
		stop()
		f.cancel()
		return err
	}
	resp.Body.Close()
	resp.Body, resp.ContentLength = f, to.Length
	resp.Header.Set("Content-Length", strconv.FormatInt(to.Length, 10))
	s := d.downloads
	s.mu.Lock()
	s.open[to.ID] = f
	s.unfinished.Remove(to.Token)
	s.mu.Unlock()
	return nil
}

// connect asks S3 for the bytes that remain. It follows no redirect: the core has chosen the address.
// No error has the address, which is a secret.
func (f *download) connect() error {
	r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, f.to.URL, nil)
	if err != nil || r.URL.Scheme != "https" && r.URL.Scheme != "http" {
		return errors.New("the address of the image cannot be read")
	}
	end := f.to.Offset + f.to.Length
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", f.at, end-1))
	r.Header.Set("If-Match", `"`+f.to.ETag+`"`)
	resp, err := f.door.downloads.s3.RoundTrip(r)
	if err != nil {
		return err
	}
	switch {
	case resp.StatusCode != http.StatusPartialContent:
		err = fmt.Errorf("status %d", resp.StatusCode)
	case !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-%d/", f.at, end-1)):
		err = errors.New("other bytes than those that were asked for")
	case strings.Trim(resp.Header.Get("ETag"), `"`) != f.to.ETag: // some servers ignore If-Match
		err = errors.New("the object was replaced")
	}
	if err != nil {
		resp.Body.Close()
		return err
	}
	f.body, f.from = resp.Body, f.at
	return nil
}

// Read implements [io.Reader].
func (f *download) Read(p []byte) (int, error) {
	s, end := f.door.downloads, f.to.Offset+f.to.Length
	s.mu.Lock()
	f.progress.Sent = f.at
	s.mu.Unlock()
	defer func() { f.writing = time.Now() }()
	if f.at == end {
		return 0, io.EOF
	}
	for {
		n, err := f.body.Read(p[:min(int64(len(p)), end-f.at)])
		f.at += int64(n)
		switch {
		case n > 0:
			return n, nil // the error comes again
		case err == nil:
			continue
		case f.ctx.Err() != nil:
			return 0, errCutByCore
		case f.at == f.from: // S3 made no progress
			return 0, f.fail(err)
		}
		// A slow device may need longer than S3 keeps the connection.
		f.body.Close()
		if again := f.connect(); again != nil {
			return 0, f.fail(errors.Join(err, again))
		}
	}
}

func (f *download) fail(err error) error {
	if f.ctx.Err() != nil {
		return errCutByCore
	}
	f.failed = true
	f.door.log.Warn("S3 ended a download; the device can resume", "download", f.to.ID, "offset", f.at, "err", err)
	return errS3
}

// Close implements [io.Closer]. The proxy calls it at any end of the response.
func (f *download) Close() error {
	s := f.door.downloads
	f.body.Close()
	s.mu.Lock()
	if p := &f.progress; !p.Ended {
		p.Ended = true
		switch {
		case p.Sent == f.to.Offset+f.to.Length:
		case f.failed:
			p.Cause = firmware.TransferUnreadable
		case time.Since(f.writing) >= writeTimeout:
			p.Cause = firmware.TransferStuck
		default:
			p.Cause = firmware.TransferEnded
		}
	}
	s.mu.Unlock()
	f.cancel()
	s.signal()
	return nil
}

// fallBack notes that the core must send the file of p, and all others for a while.
func (d *Door) fallBack(p *passage, err error) {
	p.failedS3 = true
	now := time.Now()
	before := d.downloads.paused.Swap(now.Add(s3Pause).UnixNano())
	if before < now.UnixNano() {
		d.log.Warn("this edge cannot read from S3; the core sends the images", "for", s3Pause, "err", err)
	}
}

// reportDownloads reports to the core that leads, until ctx ends. The last report may take a little
// longer: a request that is under way is not interrupted, since the gate is closed by then.
func (d *Door) reportDownloads(ctx context.Context) {
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastReportTimeout, cancel) })()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.downloads.wake:
		case <-tick.C:
		case <-ctx.Done():
			d.reportOnce(asking)
			return
		}
		d.reportOnce(asking)
	}
}

// reportOnce sends one report if there is something to report, and obeys the answer.
func (d *Door) reportOnce(ctx context.Context) {
	s, term := d.downloads, d.Leader().Term
	reports := s.reports(term)
	if len(reports) == 0 {
		return
	}
	body, err := json.Marshal(device.DownloadReports{Downloads: reports})
	if err != nil { // texts and numbers only
		panic(err)
	}
	status, answer, err := d.Ask(ctx, Question{Name: device.ReportsPath, Body: body, Repeat: true})
	var orders device.DownloadOrders
	switch {
	case err != nil:
		return // and report again
	case status == http.StatusNotFound || status == http.StatusBadRequest:
		// A core of an earlier version: it knows no downloads of edges, and judges devices by their boots.
	case status != http.StatusOK || json.Unmarshal(answer, &orders) != nil:
		return
	}
	s.answered(term, reports, orders)
}

// reports returns what the leader of the term has to know.
func (s *downloads) reports(term int64) (all []firmware.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.open {
		all = append(all, f.progress)
	}
	if term != 0 && term != s.term {
		all = append(all, s.unfinished.Values()...)
	}
	return all
}

// answered applies the leader's answer.
func (s *downloads) answered(term int64, reports []firmware.Progress, orders device.DownloadOrders) {
	cut, again := make(map[uuid.UUID]bool), make(map[uuid.UUID]bool)
	for _, id := range orders.Cut {
		cut[id] = true
	}
	for _, id := range orders.Again {
		again[id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if term != 0 {
		s.term = term
	}
	for _, p := range reports {
		f := s.open[p.ID]
		switch {
		case again[p.ID]:
			if p.Recorded {
				s.term = 0
			}
		case p.Recorded && cut[p.ID]: // the link is not good any more
			s.unfinished.Remove(p.Token)
		case f == nil:
		case p.Ended:
			delete(s.open, p.ID)
			if n := p.WithoutGap(); !cut[p.ID] && n > 0 && n < f.to.Size {
				s.unfinished.Add(p.Token, firmware.Progress{ID: p.ID, Token: p.Token, Reached: n, Sent: n, Ended: true,
					Recorded: true})
			}
		case cut[p.ID]:
			f.cancel()
		}
	}
}
