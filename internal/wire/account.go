package wire

import (
	"strconv"
	"time"
)

// Account is what a rank reports to gorun at Finalize: how many messages and bytes the rank has
// sent and received since Init, and how long it has waited for other ranks. The finalize command of
// PMI-1 carries it as fields. Package engine defines which messages and waits count.
type Account struct {
	MessagesSent     int64 `json:"messages_sent"`
	MessagesReceived int64 `json:"messages_received"`
	BytesSent        int64 `json:"bytes_sent"`     // bytes of data in the messages sent, without headers
	BytesReceived    int64 `json:"bytes_received"` // bytes of data in the messages received, without headers
	// The time for which at least one goroutine of the program waited in a call.
	Waited time.Duration `json:"waited"`
}

// accountField is a field of an Account and the field's name in a PMI-1 line.
type accountField struct {
	name  string
	value *int64
}

// fields returns a pointer to each field of a, with the field's name.
func (a *Account) fields() [5]accountField {
	return [...]accountField{
		{"messages_sent", &a.MessagesSent}, {"messages_received", &a.MessagesReceived},
		{"bytes_sent", &a.BytesSent}, {"bytes_received", &a.BytesReceived},
		{"waited_ns", (*int64)(&a.Waited)},
	}
}

// PMIFields returns the account as fields of a PMI-1 line.
func (a *Account) PMIFields() (list []PMIField) {
	for _, f := range a.fields() {
		list = append(list, PMIField{f.name, strconv.FormatInt(*f.value, 10)})
	}
	return list
}

// ParseAccount reads the account of a rank from the rank's finalize command m. ok is false if a
// field is missing, if its value is not a decimal number below 2⁶³, or if the account is not valid.
func ParseAccount(m PMIMessage) (a Account, ok bool) {
	for _, f := range a.fields() {
		text, _ := m.Get(f.name)
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return Account{}, false
		}
		*f.value = int64(n)
	}
	return a, a.Valid()
}

// Valid reports whether the account is possible: no value is negative, BytesSent is 0 if
// MessagesSent is 0, and BytesReceived is 0 if MessagesReceived is 0.
func (a *Account) Valid() bool {
	for _, f := range a.fields() {
		if *f.value < 0 {
			return false
		}
	}
	return (a.MessagesSent > 0 || a.BytesSent == 0) && (a.MessagesReceived > 0 || a.BytesReceived == 0)
}

// Add adds the account b to a. Both must be valid. If a sum overflows, Add returns false and does
// not change a.
func (a *Account) Add(b *Account) bool {
	sum, add := *a, b.fields()
	for i, f := range sum.fields() {
		*f.value += *add[i].value
	}
	if !sum.Valid() {
		return false
	}
	*a = sum
	return true
}
