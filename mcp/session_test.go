package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/mcp"
)

// texts answers each tool call with text.
func texts(text string) func(string) []string {
	return func(wire string) []string {
		var r request
		_ = json.Unmarshal([]byte(wire), &r)
		return []string{answerTo(r.Payload.ID, text)}
	}
}

func answerTo(id int32, text string) string {
	quoted, _ := json.Marshal(text)
	return fmt.Sprintf(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":%s}],"isError":false}}}`, id, quoted)
}

func TestTimeouts(t *testing.T) {
	tests := []struct {
		name string
		ctx  time.Duration // deadline of the caller; 0: none
		do   func(context.Context, *mcp.Session) error
		want time.Duration
	}{
		{"call", 0, call(mcp.CallToolParams{Name: "self.a"}), 10 * time.Second},
		{"slow tool", 0, call(mcp.CallToolParams{Name: "self.a", Timeout: 75 * time.Second}), 75 * time.Second},
		{"caller's deadline", 2 * time.Second, call(mcp.CallToolParams{Name: "self.a"}), 2 * time.Second},
		{"caller's long deadline", 75 * time.Second, call(mcp.CallToolParams{Name: "self.a"}), 75 * time.Second},
		{"timeout within a deadline", 75 * time.Second, call(mcp.CallToolParams{Name: "self.a", Timeout: time.Second}),
			time.Second},
		{"negative timeout", 0, call(mcp.CallToolParams{Name: "self.a", Timeout: -1}), 10 * time.Second},
		{"ping", 0, func(ctx context.Context, s *mcp.Session) error { return s.Ping(ctx) }, 10 * time.Second},
		{"initialize", 0, func(ctx context.Context, s *mcp.Session) error {
			_, err := s.Initialize(ctx, mcp.InitializeParams{})
			return err
		}, 10 * time.Second},
		{"list", 0, func(ctx context.Context, s *mcp.Session) error {
			_, err := s.ListTools(ctx, mcp.ListToolsParams{})
			return err
		}, 10 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := connect(mcp.SessionOptions{}, nil)
				ctx := t.Context()
				if tt.ctx > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.ctx)
					defer cancel()
				}
				start := time.Now()
				err := tt.do(ctx, s)
				if took := time.Since(start); !errors.Is(err, mcp.ErrTimeout) || errors.Is(err, mcp.ErrNotSent) || took != tt.want {
					t.Errorf("error %v after %v, want ErrTimeout after %v", err, took, tt.want)
				}
			})
		})
	}
}

func call(p mcp.CallToolParams) func(context.Context, *mcp.Session) error {
	return func(ctx context.Context, s *mcp.Session) error {
		_, err := s.Call(ctx, p)
		return err
	}
}

func TestCancelIsNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := connect(mcp.SessionOptions{}, nil)
		why := errors.New("operator pressed cancel")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err := s.CallTool(ctx, "self.a", nil)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, mcp.ErrTimeout) ||
			errors.Is(err, mcp.ErrNotSent) {
			t.Errorf("CallTool = %v, want canceled with its cause", err)
		}
		_, err = s.CallTool(ctx, "self.a", nil)
		if !errors.Is(err, mcp.ErrNotSent) || !errors.Is(err, context.Canceled) || len(d.sent) != 1 {
			t.Errorf("CallTool = %v after %d requests, want not sent", err, len(d.sent))
		}
	})
}

// The caller knows the id before the bytes leave, and a late answer carries it.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late []mcp.Answer
		s, d := connect(mcp.SessionOptions{OnUnmatched: func(a mcp.Answer) { late = append(late, a) }}, nil)
		id := s.NextID()
		_, err := s.Call(t.Context(), mcp.CallToolParams{ID: id, Name: "self.upgrade_firmware"})
		if !errors.Is(err, mcp.ErrTimeout) {
			t.Fatalf("Call = %v, want ErrTimeout", err)
		}
		d.deliver([]byte(answerTo(id, "true")))
		if len(late) != 1 || late[0].ID != int64(id) || late[0].Err != nil || late[0].Result.Content[0].Text != "true" {
			t.Errorf("unmatched %+v, want the late true of %d", late, id)
		}
	})
}

func TestUnmatchedAnswers(t *testing.T) {
	deviceError := errors.New("the device's own") // placeholder for an *Error below
	tests := []struct {
		name, payload string
		id            int64
		err           error
		message       string
	}{
		{"never asked", `{"id":7,"result":{"content":[]}}`, 7, nil, ""},
		{"error", `{"id":7,"error":{"message":"no"}}`, 7, deviceError, "no"},
		{"broken", `{"id":7,"error":{"message":"a"b"}}`, 7, deviceError, `a"b`},
		{"neither", `{"id":7}`, 7, mcp.ErrMalformed, ""},
		{"id of another kind", `{"id":{"a":1},"result":{}}`, 0, nil, ""},
		{"huge id", `{"id":99999999999999999999,"result":{}}`, 0, nil, ""},
		{"id past int32", `{"id":4294967297,"result":{}}`, 4294967297, nil, ""},
		{"float id", `{"id":7.0,"result":{}}`, 7, nil, ""},
		{"too large", `{"id":7,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 256<<10) + `"}]}}`, 7,
			mcp.ErrTooLarge, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []mcp.Answer
			s := mcp.NewSession(&device{}, mcp.SessionOptions{OnUnmatched: func(a mcp.Answer) { got = append(got, a) }})
			s.Receive([]byte(tt.payload))
			if len(got) != 1 || got[0].ID != tt.id || (got[0].Result == nil) != (got[0].Err != nil) {
				t.Fatalf("unmatched %+v, want id %d, error %v", got, tt.id, tt.err)
			}
			e, ok := errors.AsType[*mcp.Error](got[0].Err)
			switch {
			case tt.err != deviceError && !errors.Is(got[0].Err, tt.err):
				t.Errorf("error %v, want %v", got[0].Err, tt.err)
			case tt.err == deviceError && (!ok || e.Message != tt.message || e.Salvaged != (tt.name == "broken")):
				t.Errorf("error %+v, want %q", e, tt.message)
			}
		})
	}
}

// An answer with the id of another session's call, or a second answer, must not
// reach a second caller.
func TestOneAnswerToOneCall(t *testing.T) {
	unmatched := 0
	s, d := connect(mcp.SessionOptions{OnUnmatched: func(mcp.Answer) { unmatched++ }}, nil)
	d.answer = func(string) []string {
		return []string{answerTo(1<<31-1, "other"), answerTo(1, "first"), answerTo(1, "second")}
	}
	r, err := s.CallTool(t.Context(), "self.a", nil)
	if err != nil || r.Content[0].Text != "first" || unmatched != 2 {
		t.Errorf("CallTool = %+v, %v, %d unmatched, want first and 2", r, err, unmatched)
	}
}

func TestCloseFailsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := connect(mcp.SessionOptions{}, nil)
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := s.CallTool(t.Context(), "self.a", nil)
				errs <- err
			}()
		}
		synctest.Wait()
		s.Close(io.ErrUnexpectedEOF)
		s.Close(nil)
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, mcp.ErrClosed) || !errors.Is(err, io.ErrUnexpectedEOF) ||
				errors.Is(err, mcp.ErrNotSent) {
				t.Errorf("pending call: %v, want ErrClosed, not ErrNotSent", err)
			}
		}
		_, err := s.CallTool(t.Context(), "self.a", nil)
		if !errors.Is(err, mcp.ErrClosed) || !errors.Is(err, mcp.ErrNotSent) || len(d.sent) != 3 {
			t.Errorf("later call: %v after %d requests, want ErrClosed and ErrNotSent", err, len(d.sent))
		}
	})
}

func TestSendErrors(t *testing.T) {
	broken := errors.New("queue full")
	s, d := connect(mcp.SessionOptions{}, nil)
	d.sendErr = fmt.Errorf("%w: %w", mcp.ErrNotSent, broken)
	if _, err := s.CallTool(t.Context(), "self.a", nil); !errors.Is(err, broken) || !errors.Is(err, mcp.ErrNotSent) {
		t.Errorf("CallTool = %v, want the transport's error", err)
	}
	if _, err := s.Call(t.Context(), mcp.CallToolParams{Name: "self.a", ID: -1}); !errors.Is(err, mcp.ErrInvalid) {
		t.Errorf("Call with id -1 = %v, want ErrInvalid", err)
	}
}

// closing is a transport whose connection ends while it sends.
type closing struct{ session *mcp.Session }

func (c *closing) Send(context.Context, []byte, mcp.Scope) error {
	c.session.Close(io.EOF)
	return mcp.ErrNotSent
}

func TestCloseWhileSendingStaysNotSent(t *testing.T) {
	link := &closing{}
	link.session = mcp.NewSession(link, mcp.SessionOptions{})
	_, err := link.session.CallTool(t.Context(), "self.a", nil)
	if !errors.Is(err, mcp.ErrNotSent) || !errors.Is(err, mcp.ErrClosed) {
		t.Errorf("CallTool = %v, want ErrNotSent and ErrClosed", err)
	}
}

// blocked is a transport that never gets to write.
type blocked struct{}

func (blocked) Send(ctx context.Context, _ []byte, _ mcp.Scope) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", mcp.ErrNotSent, ctx.Err())
}

func TestTimeoutCoversSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mcp.NewSession(blocked{}, mcp.SessionOptions{CallTimeout: 3 * time.Second})
		start := time.Now()
		_, err := s.CallTool(t.Context(), "self.a", nil)
		if !errors.Is(err, mcp.ErrTimeout) || !errors.Is(err, mcp.ErrNotSent) || time.Since(start) != 3*time.Second {
			t.Errorf("CallTool = %v after %v, want ErrTimeout, not sent, after 3s", err, time.Since(start))
		}
	})
}

func TestSameIDTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := connect(mcp.SessionOptions{}, nil)
		p := mcp.CallToolParams{ID: 5, Name: "self.a"}
		go func() { _, _ = s.Call(t.Context(), p) }()
		synctest.Wait()
		if _, err := s.Call(t.Context(), p); !errors.Is(err, mcp.ErrInvalid) || len(d.sent) != 1 {
			t.Errorf("second call with id 5: %v after %d requests, want ErrInvalid", err, len(d.sent))
		}
		s.Close(nil)
	})
}

// Answers in any order find their calls, under the race detector.
func TestConcurrentCalls(t *testing.T) {
	s, d := connect(mcp.SessionOptions{}, nil)
	d.answer = func(wire string) []string {
		r := parseRequest(t, wire)
		go d.deliver([]byte(answerTo(r.Payload.ID, r.Payload.Params.Name)))
		return nil
	}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			name := fmt.Sprintf("self.tool_%d", i)
			if r, err := s.CallTool(t.Context(), name, nil); err != nil || r.Content[0].Text != name {
				t.Errorf("CallTool(%s) = %+v, %v", name, r, err)
			}
		})
	}
	wg.Wait()
}

func TestLargeResult(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 200<<10/16)
	s, _ := connect(mcp.SessionOptions{}, texts(text))
	r, err := s.CallTool(t.Context(), "self.a", nil)
	if err != nil || r.Content[0].Text != text {
		t.Errorf("200 KiB result: %v", err)
	}
	s, _ = connect(mcp.SessionOptions{MaxMessage: 1000}, texts(text))
	if _, err := s.CallTool(t.Context(), "self.a", nil); !errors.Is(err, mcp.ErrTooLarge) ||
		errors.Is(err, mcp.ErrNotSent) {
		t.Errorf("result over MaxMessage: %v, want ErrTooLarge", err)
	}
}

// Receive retains nothing of a message, because the transport reuses its
// buffer.
func TestReceiveKeepsNothing(t *testing.T) {
	buf := []byte(`{"id":1,"result":{"tools":[{"name":"self.a","description":"text","inputSchema":{"type":"object","x":"y"},"annotations":{"audience":["user"]}}]}}`)
	var s *mcp.Session
	s, d := connect(mcp.SessionOptions{}, nil)
	d.answer = func(string) []string {
		s.Receive(buf)
		clear(buf)
		return nil
	}
	tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{})
	if err != nil || len(tools) != 1 || tools[0].Name != "self.a" ||
		string(tools[0].InputSchema) != `{"type":"object","x":"y"}` || !tools[0].UserOnly() {
		t.Errorf("ListTools = %+v, %v", tools, err)
	}
}

func TestPing(t *testing.T) {
	for _, answer := range []string{`"error":{"message":"Method not implemented: ping"}`, `"result":{}`, `"result":null`} {
		s, _ := connect(mcp.SessionOptions{}, replies(`{"type":"mcp","payload":{"id":1,`+answer+`}}`))
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("Ping answered %s = %v", answer, err)
		}
	}
	s, d := connect(mcp.SessionOptions{}, nil)
	d.sendErr = io.ErrClosedPipe
	if err := s.Ping(t.Context()); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Ping = %v, want the transport's error", err)
	}
}

// OnSent reports that the tool may run: it is called before the session waits
// for the answer, and not for a request that the transport refused.
func TestOnSent(t *testing.T) {
	for name, sendErr := range map[string]error{"accepted": nil, "refused": mcp.ErrNotSent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, d := connect(mcp.SessionOptions{}, nil) // which never answers
				d.sendErr = sendErr
				sent := 0
				ctx, cancel := context.WithCancel(t.Context())
				cancelled := time.AfterFunc(time.Second, cancel)
				defer cancelled.Stop()
				_, err := s.Call(ctx, mcp.CallToolParams{Name: "self.a", OnSent: func() { sent++ }})
				if want := sendErr == nil; err == nil || (sent == 1) != want || sent > 1 {
					t.Errorf("%d times sent, %v", sent, err)
				}
			})
		})
	}
}
