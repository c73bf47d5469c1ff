package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
	"fleetd/fleet/record"
)

// objects keeps every checkpoint that it gets, because the one before a change of the log is the one that shows it,
// and the latest under a fixed name.
func (p *Publisher) objects(address string) func(context.Context, record.Checkpoint) error {
	var place Place
	return func(ctx context.Context, c record.Checkpoint) (err error) {
		if place == nil { // it may have been away at the start
			if place, err = p.o.Open(ctx, address); err != nil {
				return err
			}
		}
		for _, name := range []string{fmt.Sprintf("checkpoints/%s-%012d", c.At.UTC().Format("20060102T150405Z"), c.Size), "checkpoint"} {
			if err := place.Put(ctx, name, []byte(c.Note)); err != nil {
				return err
			}
		}
		return nil
	}
}

func client(guard *outbound.Guard) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1
	return guard.Client(sendTimeout, transport)
}

// maxAnswer bounds the answer of a server, in bytes.
const maxAnswer = 16 << 10

// post sends text. It returns the answer's body, also with the error of a status that is no success.
func (p *Publisher) post(ctx context.Context, address, text string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(text))
	if err != nil {
		return nil, errors.New("the address cannot be used")
	}
	req.Header.Set("Content-Type", "text/plain; charset=utf-8")
	resp, err := p.client.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) { // its text has the address
			err = failed.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && (resp.StatusCode < 200 || resp.StatusCode > 299) {
		err = &statusError{status: resp.StatusCode, refusal: refusal{fleet.Because("checkpoint_status", "status", resp.StatusCode)}}
	}
	return body, err
}
