# A merchant's program: Ruby's net/http on one connection.
require 'json'
require 'net/http'
require 'uri'

base, order, key = ARGV
uri = URI(base)
told = []
Net::HTTP.start(uri.host, uri.port, nil, nil, read_timeout: 30) do |http|
  2.times do
    post = Net::HTTP::Post.new('/v1/payments', 'Authorization' => 'Bearer sk_test_A',
                                               'Content-Type' => 'application/json', 'Idempotency-Key' => key)
    post.body = JSON.generate(merchant_order_no: order, amount: 10_000, currency: 'USD')
    paid = http.request(post)
    told << [paid.code.to_i, JSON.parse(paid.body)['status'], paid['Safepost-Knowledge']]
  end
  number = URI.encode_www_form_component(order)
  found = http.get("/v1/payments?merchant_order_no=#{number}", 'Authorization' => 'Bearer sk_test_A')
  told << [found.code.to_i, JSON.parse(found.body)['data'][0]['status']]
end
print JSON.generate(told)
