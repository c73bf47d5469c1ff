package device

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
	"fleetd/fleet/picture"
)

// explainTimeout bounds the wait for the answer to one picture; a board also waits 30 s.
const explainTimeout = 30 * time.Second

// A VisionUpstream is a service that answers questions about pictures: it accepts the form that a
// board sends, and answers with the JSON that a board expects.
type VisionUpstream struct {
	url, token string
	client     *http.Client
}

var _ Explainer = (*VisionUpstream)(nil)

// NewVisionUpstream forwards pictures to url, which the administrator configured, with the bearer
// token if it is not empty.
func NewVisionUpstream(url, token string, guard *outbound.Guard) *VisionUpstream {
	return &VisionUpstream{url: url, token: token,
		client: guard.Client(explainTimeout, http.DefaultTransport.(*http.Transport).Clone())}
}

// DialBy makes the upstream connect with dial alone, without a proxy: for an address that the
// administrator did not configure.
func (u *VisionUpstream) DialBy(dial func(ctx context.Context, network, addr string) (net.Conn, error),
) *VisionUpstream {
	u.client.Transport = &http.Transport{DialContext: dial, DisableKeepAlives: true, TLSHandshakeTimeout: explainTimeout,
		MaxResponseHeaderBytes: 64 << 10}
	return u
}

// Explain posts the picture and the question, and returns the answer unchanged.
func (u *VisionUpstream) Explain(ctx context.Context, p picture.Photo, clientID string) ([]byte, error) {
	body, contentType, err := photoForm(p)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.url, body)
	if err != nil {
		return nil, err
	}
	id := p.Device.MAC()
	if id == "" {
		id = string(p.Device)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Device-Id", id)
	req.Header.Set("Client-Id", clientID)
	if u.token != "" {
		req.Header.Set("Authorization", "Bearer "+u.token)
	}
	resp, err := u.client.Do(req)
	if err != nil {
		return nil, unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s", fleet.Refuse(fleet.ErrUnavailable, "vision_failed.status", "status",
			resp.StatusCode), resp.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxVisionAnswer+1))
	if err != nil {
		return nil, unreachable(err)
	}
	var expected struct{ Success *bool }
	if len(answer) > maxVisionAnswer || json.Unmarshal(answer, &expected) != nil || expected.Success == nil {
		return nil, fleet.Refuse(fleet.ErrUnavailable, "vision_failed.answer", "limit", maxVisionAnswer)
	}
	return answer, nil
}

// unreachable keeps the cause for the log; the device does not learn the address.
func unreachable(err error) error {
	refused := fleet.Refuse(fleet.ErrUnavailable, "vision_failed.unreachable")
	if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
		refused = fleet.Refuse(fleet.ErrUnavailable, "vision_failed.timeout", "timeout_ms", explainTimeout)
	}
	return fmt.Errorf("%w: %w", refused, err)
}

// photoForm is the form that a board sends, in one piece and with its length.
func photoForm(p picture.Photo) (body *bytes.Buffer, contentType string, err error) {
	body = &bytes.Buffer{}
	form := multipart.NewWriter(body)
	if err := form.WriteField("question", p.Question); err != nil {
		return nil, "", err
	}
	header := textproto.MIMEHeader{}
	header.Set("Content-Disposition", mime.FormatMediaType("form-data", map[string]string{"name": "file",
		"filename": "camera.jpg"}))
	header.Set("Content-Type", p.Snapshot.MediaType)
	part, err := form.CreatePart(header)
	if err != nil {
		return nil, "", err
	}
	if _, err := part.Write(p.Data); err != nil {
		return nil, "", err
	}
	return body, form.FormDataContentType(), form.Close()
}
