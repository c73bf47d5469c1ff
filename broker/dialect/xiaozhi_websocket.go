package dialect

import "time"

// boardChannel limits a conversation without a voice server over a WebSocket: meanwhile the board
// listens to a person who gets no reply.
const boardChannel = time.Minute

// xiaozhiWebSocket is xiaozhi over a WebSocket, which carries audio too. The device opens it for
// a conversation, sends hello, and closes it with the conversation. It knows no goodbye: the end
// of the connection is the end of the conversation.
type xiaozhiWebSocket struct{ xiaozhi }

var _ Dialect = xiaozhiWebSocket{}

// XiaozhiWebSocket returns the dialect of a device with stock firmware over a
// WebSocket.
func XiaozhiWebSocket() Dialect { return xiaozhiWebSocket{} }

// Opening lets the device send first: it waits for the answer to its hello.
func (xiaozhiWebSocket) Opening() Opening { return Opening{} }

func (xiaozhiWebSocket) MayPublish(string) bool   { return false }
func (xiaozhiWebSocket) MaySubscribe(string) bool { return false }
func (xiaozhiWebSocket) Address([]byte) Address   { return Address{} }

func (xiaozhiWebSocket) Keep(g Greeting, h History) time.Duration {
	switch {
	case !g.MCP:
		return 0
	case h.Software:
		return h.Timeout
	}
	return min(h.Timeout, boardChannel)
}

func (xiaozhiWebSocket) Answer(string, int) (session string, hello []byte) {
	return newServerHello("websocket").encode()
}

func (xiaozhiWebSocket) Goodbye(string) (message []byte, closes bool) { return nil, true }

// Closed shows no habit: the connection always ends with the conversation.
func (xiaozhiWebSocket) Closed(Ending) Habit { return HabitUnknown }
