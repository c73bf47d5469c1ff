package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

type auditFollow struct {
	Server
	Output string        `required:"" short:"o" help:"File to append the entries to, an object on each line." type:"path" placeholder:"FILE"`
	State  string        `help:"File with the number of the next entry. Default: the output with .next appended." type:"path" placeholder:"FILE"`
	From   int64         `help:"Number of the first entry, if there is no state yet." default:"0" placeholder:"N"`
	Every  time.Duration `help:"Time between two requests. The server permits 30 exports a minute." default:"5s"`
	Once   bool          `help:"End when all entries of the latest checkpoint are written."`
}

// maxBatch is how many entries are written before the state is.
const maxBatch = 1000

// Run appends entries until it is interrupted. An entry is written before the state, so after a crash the last entries
// may be in the file twice; their numbers show it.
func (c *auditFollow) Run(ctx context.Context) error {
	if c.State == "" {
		c.State = c.Output + ".next"
	}
	next, err := c.readState()
	if err != nil {
		return err
	}
	out, err := openOutput(c.Output)
	if err != nil {
		return err
	}
	defer out.Close()
	for wait := c.Every; ; {
		next, err = c.follow(ctx, out, next)
		var refused *problemError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &refused) && !refused.passes() || c.Once, errors.Is(err, errOutput):
			return err
		case err != nil:
			fmt.Fprintf(os.Stderr, "fleetd: %v; trying again in %v\n", err, wait.Round(time.Second))
		default:
			wait = c.Every
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		if err != nil {
			wait = min(2*wait, time.Minute)
		}
	}
}

// errOutput marks errors of the files of this machine, which another attempt does not mend.
var errOutput = errors.New("cannot write")

func (c *auditFollow) readState() (int64, error) {
	data, err := os.ReadFile(c.State)
	if errors.Is(err, fs.ErrNotExist) {
		return c.From, nil
	}
	if err != nil {
		return 0, err
	}
	next, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || next < 0 {
		return 0, fmt.Errorf("%s does not contain the number of an entry: delete it to begin at --from", c.State)
	}
	return next, nil
}

// openOutput opens the file for appending, without a last line that a crash cut off.
func openOutput(name string) (*os.File, error) {
	out, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	size, err := endOfLines(out)
	if err == nil {
		err = out.Truncate(size)
	}
	if err == nil {
		_, err = out.Seek(size, io.SeekStart)
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

// endOfLines returns the position after the last line break.
func endOfLines(f *os.File) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	block := make([]byte, 64<<10)
	for err == nil && end > 0 {
		n := min(end, int64(len(block)))
		if _, err = f.ReadAt(block[:n], end-n); err != nil {
			break
		}
		if i := bytes.LastIndexByte(block[:n], '\n'); i >= 0 {
			return end - n + int64(i) + 1, nil
		}
		end -= n
	}
	return 0, err
}

// follow appends the entries from next on, and returns the number after the last one that was written.
func (c *auditFollow) follow(ctx context.Context, out *os.File, next int64) (int64, error) {
	body, err := c.open(ctx, "/audit/log/lines?"+url.Values{"from": {strconv.FormatInt(next, 10)}}.Encode())
	if err != nil {
		return next, err
	}
	defer body.Close()
	lines := bufio.NewReaderSize(body, 128<<10)
	var batch bytes.Buffer
	written := next
	save := func() error {
		if written == next {
			return nil
		}
		_, err := out.Write(batch.Bytes())
		if err == nil {
			err = out.Sync()
		}
		if err == nil {
			err = writeFile(c.State, []byte(strconv.FormatInt(written, 10)+"\n"))
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errOutput, err)
		}
		batch.Reset()
		next = written
		return nil
	}
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil { // a line without an end was cut off
			if saved := save(); saved != nil {
				return next, saved
			}
			if err == io.EOF {
				return next, nil
			}
			return next, fmt.Errorf("the answer from %s was cut off: %w", c.URL, err)
		}
		var entry struct{ Number int64 }
		if err := json.Unmarshal(line, &entry); err != nil || entry.Number != written {
			return next, fmt.Errorf("the server answered with %.100q instead of entry %d", line, written)
		}
		batch.Write(line)
		if written++; written-next >= maxBatch {
			if err := save(); err != nil {
				return next, err
			}
		}
	}
}

// open returns the body of an answer of any length.
func (c *Server) open(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the server at %s (is it running? see --url): %w", c.URL, err)
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		data, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // what arrived says why
		return nil, problem(resp, data)
	}
	return resp.Body, nil
}
